"""What training and translation stand on: text, batches, run folders, search, scores, flags."""
