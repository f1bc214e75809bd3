"""At which versions the tables are read: now, as of a time, as of a batch."""
