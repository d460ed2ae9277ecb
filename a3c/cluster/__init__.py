"""Who is where: addresses, tasks, hosts, the plan of all processes."""
