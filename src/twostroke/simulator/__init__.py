"""How other hardware would serve a workload: the engine's scheduler driven on a virtual clock."""
