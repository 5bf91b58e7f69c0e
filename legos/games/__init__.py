"""Games as graphs: solvers, and evaluation figures without sampling error."""
