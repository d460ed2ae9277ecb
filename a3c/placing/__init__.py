"""Which process of which cluster this is, as flags, TF_CONFIG or Slurm say it."""
