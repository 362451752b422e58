"""What a study will take before it runs, which jobs it has, and why a job runs again; neither torch nor pandas."""
