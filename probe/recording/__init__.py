"""From a hook to the disk: records in a ring, drained, summed and written as segments."""
