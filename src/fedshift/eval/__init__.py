"""How well a state does: at the participating sites, and at those it has not seen."""
