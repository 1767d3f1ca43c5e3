package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// The main job: every worker, on every machine, waits for its slot.
func ExampleLimiter_Wait() {
	store := headgate.Memory() // or headgate.Redis(client), to share the limit between processes
	limiter, err := headgate.New(store, "vendor", algos.TokenBucket{Rate: 500, Per: time.Second, Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 3 {
		if err := limiter.Wait(context.Background()); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("request", i)
	}
	// Output:
	// request 0
	// request 1
	// request 2
}

// A wait that cannot meet its deadline fails at once, and charges nothing.
func ExampleLimiter_Wait_deadline() {
	limiter, err := headgate.New(headgate.Memory(), "vendor", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(limiter.Wait(ctx))
	err = limiter.Wait(ctx)
	fmt.Println(errors.Is(err, headgate.ErrDenied), errors.Is(err, context.DeadlineExceeded))
	if denied, ok := errors.AsType[*headgate.DeniedError](err); ok {
		fmt.Println(denied.Decision.RetryAfter.Round(time.Minute))
	}
	// Output:
	// <nil>
	// true true
	// 59m0s
}

// Allow decides now. RetryAfter is exact: a caller who sleeps it is admitted, if nobody else came.
func ExampleLimiter_Allow() {
	limiter, err := headgate.New(headgate.Memory(), "sms", algos.TokenBucket{Rate: 5, Per: 24 * time.Hour, Burst: 5})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 6 {
		d, err := limiter.Allow(context.Background())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 4 0s
	// true 3 0s
	// true 2 0s
	// true 1 0s
	// true 0 0s
	// false 0 4h48m0s
}

// A reservation is a slot to come back at. What is not used goes back.
func ExampleLimiter_Reserve() {
	limiter, err := headgate.New(headgate.Memory(), "vendor", algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 3 {
		r, err := limiter.Reserve(ctx, headgate.Within(90*time.Second))
		if err != nil {
			fmt.Println(errors.Is(err, headgate.ErrDenied))
			continue
		}
		fmt.Println(r.Delay().Round(time.Second))
		defer r.Cancel(ctx)
	}
	// Output:
	// 0s
	// 1m0s
	// true
}

// AfterFunc runs a function at the slot, without a goroutine that waits.
func ExampleReservation_AfterFunc() {
	limiter, err := headgate.New(headgate.Memory(), "vendor", algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan struct{})
	r, err := limiter.Reserve(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	stop := r.AfterFunc(func() {
		fmt.Println("it is our turn")
		close(done)
	})
	<-done
	fmt.Println("stopped:", stop())
	// Output:
	// it is our turn
	// stopped: false
}

// For gives each user a limit of their own.
func ExampleLimiter_For() {
	limiter, err := headgate.New(headgate.Memory(), "sms", algos.TokenBucket{Rate: 5, Per: 24 * time.Hour, Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, phone := range []string{"+4470001", "+4470001", "+4470002"} {
		d, err := limiter.For(phone).Allow(context.Background())
		fmt.Println(phone, d.Allowed, err)
	}
	// Output:
	// +4470001 true <nil>
	// +4470001 false <nil>
	// +4470002 true <nil>
}

func ExampleRedis() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	limiter, err := headgate.New(headgate.Redis(client), "openai:rpm",
		algos.TokenBucket{Rate: 500, Per: time.Minute, Burst: 50},
		headgate.WithName("openai"), headgate.WithMaxWait(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := limiter.WaitN(context.Background(), 2); err != nil {
		if failed, ok := errors.AsType[*headgate.StoreError](err); ok {
			fmt.Println("Redis failed; is it certain that nothing was charged?", !failed.Unknown)
		}
	}
}

// While Redis is out, each of four processes admits its quarter of the limit.
func ExampleWithFallback() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1}) // where no Redis is
	defer client.Close()
	limiter, err := headgate.New(headgate.Redis(client), "vendor", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 8},
		headgate.WithFallback(headgate.Local(0.25)))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	defer limiter.Close(ctx)
	for range 3 {
		d, err := limiter.Allow(ctx)
		fmt.Println(d.Allowed, d.Limit, d.Source, err)
	}
	// Output:
	// true 2 local <nil>
	// true 2 local <nil>
	// false 2 local <nil>
}
