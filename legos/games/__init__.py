"""Games as graphs: solvers, and exact values of policies, without sampling error."""
