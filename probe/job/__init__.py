"""Who this process is in its job, and what is known of the job."""
