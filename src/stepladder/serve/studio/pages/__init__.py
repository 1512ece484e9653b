"""The pages of the studio, one per file: `add_..._page(site, ...)` adds its addresses to a site."""
