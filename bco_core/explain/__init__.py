"""Why a decision is what it is: what may happen, what moves it, which contexts drove it, and when it was like this."""
