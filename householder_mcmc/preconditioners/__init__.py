"""What L is: linear maps, the reflections that they are made of, and BlackJAX's `Metric` of them."""
