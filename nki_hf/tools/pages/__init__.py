"""Pages: one HTML file each, which opens offline, on a phone and on a wide screen, in light and in dark."""
