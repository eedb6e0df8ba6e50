"""The shipment experiment: its data, its runs and its report."""
