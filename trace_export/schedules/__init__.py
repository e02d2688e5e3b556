"""Pipeline schedules in theory: the order of blocks on each rank, and a simulation of their times."""
