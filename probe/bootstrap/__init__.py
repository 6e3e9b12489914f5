"""What ``meshscope run`` puts in front of the ranks' import path."""
