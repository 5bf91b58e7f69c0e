"""Games as graphs: solvers, and figures that are exact instead of sampled."""
