"""Pictures of machines and programs, as SVG that needs no library and no network to be looked at."""
