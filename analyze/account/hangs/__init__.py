"""Captures that broke off: who waited for whom, who ended, how far each rank came."""
