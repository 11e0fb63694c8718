"""What reads a run's results: watchers, lakes, a broker and an endpoint. Publications come out, for the verdict."""
