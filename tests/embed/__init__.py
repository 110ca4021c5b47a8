"""Workers inside of servers: real processes behind a real balancer, under constant load, replaced one by one."""
