"""What keeps the probe from harming the program: waits, signals, threads, memory, notices."""
