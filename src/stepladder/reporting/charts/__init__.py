"""Charts as SVG: learning curves, intervals, bands and search trees."""
