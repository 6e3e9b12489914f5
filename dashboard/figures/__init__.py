"""Pure functions from results to plotly figures; nothing is computed here but places on paper."""
