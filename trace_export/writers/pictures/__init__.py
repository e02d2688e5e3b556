"""A chart as a picture or a page: SVG, PNG and HTML."""
