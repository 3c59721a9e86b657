"""What most research code does: copies of state dictionaries, a DataLoader for each client, an average by key."""

import copy

from .given import Given, Turns, accuracy, train


def take_part(given: Given, turns: Turns) -> None:
    """FedAvg by state dictionaries."""
    net = given.network()
    turns.wait()
    for number in range(given.rounds):
        server = copy.deepcopy(net.state_dict())
        states = []
        for k in given.clients:
            local = copy.deepcopy(net)
            local.load_state_dict(server)
            train(local, given.loader(k, number), given.lr)
            states.append(copy.deepcopy(local.state_dict()))
        mean = copy.deepcopy(states[0])
        for key, first in mean.items():
            shares = [n / sum(given.train) for n in given.train]
            if first.is_floating_point():
                mean[key] = sum(state[key] * share for state, share in zip(states, shares, strict=True))
        net.load_state_dict(mean)
        turns.finished(accuracy(net, given), net.state_dict)
