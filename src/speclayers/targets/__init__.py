"""Target models: fetching, loading, finding their blocks, capturing their states."""
