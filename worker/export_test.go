package worker

// StopPromoter ends a throttle's promoter, as if none ran anywhere.
func StopPromoter(t *Throttle) { t.promoter.stop() }
