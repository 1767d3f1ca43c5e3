// Package headgate is a client-side distributed rate limiter.
//
// Processes on many machines share a limit: a vendor's 500 requests a minute, five SMS a day for each number. Redis
// holds the count, and each caller gets a slot of its own in one round trip, instead of "no, try later":
//
//	store := headgate.Redis(rdb)
//	limiter, err := headgate.New(store, "openai:rpm",
//		algos.TokenBucket{Rate: 500, Per: time.Minute, Burst: 50})
//	…
//	if err := limiter.Wait(ctx); err != nil { // sleeps until this caller's slot
//		return err
//	}
//
// There are three verbs, as in golang.org/x/time/rate. Wait sleeps until the slot. Reserve takes the slot and says
// when it is, to be waited for without holding a goroutine, or cancelled. Allow takes a slot only if it is now. They
// are one thing: Wait is Reserve bounded by the context's deadline and a sleep, Allow is Reserve within zero.
//
// # Words
//
// A permit is the right to do one unit of work; a request's cost is how many it asks for. A slot is the instant at
// which a request may proceed. A bound is the furthest slot that a caller accepts. Retry-after is how long until the
// same request, with the same bound, would be admitted.
//
// # What is promised
//
// Nothing is admitted beyond the limit; what is ambiguous, a lost reply for instance, is resolved toward admitting
// less. Slots go out in the order in which requests reach the store and do not move. A refusal charges nothing. A
// call is charged at most once, whatever the network does. A wait that cannot meet its context's deadline fails at
// once. What was reserved and not used can be given back. A limiter that is as new keeps nothing in the store.
//
// Memory gives the same answers as Redis, also in the virtual time of testing/synctest.
//
// # Without Redis
//
// When Redis does not answer, a call returns a *StoreError, or what WithFallback says: FailOpen, KeepWaiting, or Local,
// which decides in process by a share of the limit. Each decision's Source tells who made it.
package headgate
