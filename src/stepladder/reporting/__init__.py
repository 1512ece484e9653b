"""Tables, charts, run reports, comparisons and studies. They read run folders and never load a model."""
