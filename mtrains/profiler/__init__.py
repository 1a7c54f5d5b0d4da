"""What is known of how tables are accessed: traces and simulations of caches, profiles, their
files, and models of access patterns."""
