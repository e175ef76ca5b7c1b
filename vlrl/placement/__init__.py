"""Workers: processes that simulate, browse, judge and grade, on this machine or on any node of a Ray cluster."""
