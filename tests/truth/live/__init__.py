"""The truth suite on real processes: the reference trainer with faults, judged by paired steps."""
