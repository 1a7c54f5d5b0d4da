"""What is known of how tables are accessed: profiles, their files, and models of access patterns."""
