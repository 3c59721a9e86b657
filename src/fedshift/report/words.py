"""A comparison's protocol in words."""

from collections.abc import Mapping
from typing import Any

from .comparison import Comparison, plain
from .records import Run

BUFFERS = {
    "mean": "averaged",
    "local": "kept at each site, averaged for new sites",
    "pooled": "pooled (E[Var] + Var[E])",
}


def headline(c: Comparison) -> str:
    """One line: what was compared, on what."""
    config = c.runs[0].config
    outs = ["+".join(left) for left in c.left_outs if left]
    without = f", left out: {', '.join(outs)}" if outs else ""
    seeds = f"{'seed' if len(c.seeds) == 1 else 'seeds'} {', '.join(map(str, c.seeds))}"
    return f"{', '.join(c.methods)} on {config['data']['name']}{without}; {seeds}"


def protocol_words(c: Comparison) -> dict[str, str]:
    """Everything the runs share, by topic."""
    config = c.runs[0].config
    outs = ["+".join(left) or "none" for left in c.left_outs]
    return {
        "Methods": "; ".join(_settings(label, runs) for label, runs in c.methods.items()),
        "Data": _data(config["data"]),
        "Left out": f"{', '.join(outs)}{' (one choice per run)' if len(outs) > 1 else ''}",
        "Seeds": ", ".join(map(str, c.seeds)),
        "Model": _model(config["model"]),
        "Rounds": _rounds(config),
        "Optimiser": _optimizer(config),
        "Averaging": f"sites weighted by {config['federation']['weights']}; BatchNorm statistics: "
        f"{BUFFERS.get(config['federation']['buffers'], config['federation']['buffers'])}",
        "Reported": _reported(config["eval"]),
        **_adapted(c),
        "Computed by": f"engine {config['engine']}, {config['device']}, {config['precision']}",
    }


def versions_words(c: Comparison) -> dict[str, str]:
    """What the runs were made with; several values where they differ."""
    keys = dict.fromkeys(key for run in c.runs for key in run.versions)
    found = {key: dict.fromkeys(run.versions.get(key) for run in c.runs) for key in keys}
    return {key: ", ".join("none" if v is None else str(v) for v in values) for key, values in found.items()}


def _settings(label: str, runs: Mapping[Any, Run]) -> str:
    method = next(iter(runs.values())).config["method"]
    settings = ", ".join(f"{key} {plain(value)}" for key, value in method.items() if key != "name")
    return f"{label}: {settings}" if settings and "(" not in label else label


def _data(data: dict[str, Any]) -> str:
    rest = 1 - data["val"] - data["test"]
    parts = [
        data["name"],
        f"{rest:.0%} of a site's images for training, {data['val']:.0%} validation, {data['test']:.0%} test",
    ]
    parts += [f"{data['clients_per_domain']} clients per domain"] if data["clients_per_domain"] > 1 else []
    parts += [f"at most {data['limit']} training images per client"] if data["limit"] else []
    parts += [f"recipe {data['recipe']}"] if data["recipe"] != "none" else []
    parts += [f"{key.replace('_', ' ')} {plain(value)}" for key, value in data.items() if _is_dial(key, value)]
    parts += ["SCORED ON TRAINING IMAGES"] if data["leak"] != "no" else []
    return "; ".join(parts)


def _is_dial(key: str, value: Any) -> bool:
    """Whether a protocol's further setting is in use, and so belongs into the description."""
    plain_values = {
        **{"domains_per_client": 0, "clients": 0, "mixing": 0.0, "label_skew": 0.0, "quantity_skew": "even"},
        **{"share": 1.0, "truncate": 0.0, "truncate_val": 0.0, "shots": 0, "adapt": 0.0, "split": "seeded"},
    }
    return key in plain_values and value != plain_values[key]


def _model(model: dict[str, Any]) -> str:
    options = ", ".join(f"{key} = {plain(value)}" for key, value in model.get("options", {}).items())
    return f"{model['name']} ({options})" if options else str(model["name"])


def _rounds(config: dict[str, Any]) -> str:
    federation, local = config["federation"], config["local"]
    share = federation["participation"]
    who = "all sites take part" if share == 1 else f"{share:.0%} of the sites take part in each"
    work = f"{local['steps']} batches" if local["steps"] else _count(local["epochs"], "epoch")
    text = f"{federation['rounds']}; {who}; {work} of local training in batches of {local['batch']}"
    part = local.get("sample", 1.0)
    text += f", on {part:.0%} of a site's images, drawn afresh, unless the method chooses them" if part < 1 else ""
    return text if federation.get("common_init", True) else f"{text}; each site starts from initial weights of its own"


def _optimizer(config: dict[str, Any]) -> str:
    o, schedule = config["optimizer"], config["schedule"]
    settings = [f"{key} {plain(value)}" for key, value in o.items() if key != "name" and value]
    falls = [] if schedule["kind"] == "constant" else [f"{schedule['kind']} schedule"]
    kept = ["kept from round to round"] if config["local"]["keep_optimizer"] else ["fresh each round"]
    return ", ".join([o["name"], *settings, *falls, *kept])


def _reported(evaluation: dict[str, Any]) -> str:
    best = evaluation["select"] == "val"
    text = "the round with the best mean validation accuracy of the sites" if best else "the last round"
    local = evaluation.get("point", "after_aggregation") == "after_local"
    return f"{text}; sites' own models as they are right after local training" if local else text


def _adapted(c: Comparison) -> dict[str, str]:
    """The budget of adaptation, where there is any; of `auto`, that of the rules it became."""
    e = c.runs[0].config["eval"]
    asked = e.get("adapt", "none")
    if asked == "none":
        return {}
    work = f"{e['adapt_steps']} batches" if e["adapt_steps"] else _count(e["adapt_epochs"], "epoch")
    budgets = {"norm": "one pass", "entropy": f"{work} at {plain(e['adapt_rate'])} of the learning rate"}
    records = [run.chosen for run in c.runs if run.chosen]
    became = {s["adapted"]["rule"] for record in records for s in record["unseen"].values() if "adapted" in s}
    words = "; ".join(f"{rule}, {budgets.get(rule, work)}" for rule in (sorted(became) if asked == "auto" else [asked]))
    return {"Adaptation": words if asked != "auto" else f"auto: {words}" if words else "auto"}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
