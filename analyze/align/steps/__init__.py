"""Which steps are analysed, and the window of each on every rank."""
