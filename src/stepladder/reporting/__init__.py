"""Tables, charts, report pages, comparisons and studies."""
