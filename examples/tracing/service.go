package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/trace"
)

// A service summarizes texts by an API that admits five requests a second, three of a user in a minute.
type service struct {
	tracer oteltrace.Tracer
	users  *headgate.Limiter
	api    *headgate.Limiter
}

func newService(store headgate.Store, t *telemetry, keys bool) (*service, error) {
	opts := []trace.Option{
		trace.WithTracerProvider(t.tracers), trace.WithMeterProvider(t.meters), trace.WithScriptCalls(),
	}
	if keys {
		opts = append(opts, trace.WithKey(func(key string) string { return key }))
	}
	instrument := trace.Instrument(opts...)
	users, err := headgate.New(store, "tracing:users", algos.FixedWindow{Limit: 3, Window: time.Minute},
		headgate.WithName("users"), instrument)
	if err != nil {
		return nil, err
	}
	api, err := headgate.New(store, "tracing:api", algos.TokenBucket{Rate: 5, Per: time.Second, Burst: 1},
		headgate.WithName("api"), instrument)
	return &service{tracer: t.tracers.Tracer("example"), users: users, api: api}, err
}

// serve answers a few requests: three users at once, one who comes again and again, and, while an order holds the next
// slots, one in a hurry and one whose client goes away. The order is then cancelled.
func (s *service) serve(ctx context.Context) error {
	if err := s.reset(ctx); err != nil {
		return err
	}
	var clients sync.WaitGroup
	for _, user := range []string{"ann", "ben", "cid"} {
		clients.Go(func() { s.summarize(ctx, user, time.Second) })
	}
	clients.Wait()
	s.summarize(ctx, "ann", time.Second)
	s.summarize(ctx, "ann", time.Second)
	s.summarize(ctx, "ann", time.Second) // her fourth in a minute

	order := s.order(ctx)
	s.summarize(ctx, "ben", 50*time.Millisecond)
	s.leave(ctx)
	s.cancel(ctx, order)
	return ctx.Err()
}

// reset forgets what another run left in a real Redis.
func (s *service) reset(ctx context.Context) error {
	ctx, span := s.tracer.Start(ctx, "start")
	defer span.End()
	for _, l := range []*headgate.Limiter{s.users.For("ann"), s.users.For("ben"), s.users.For("cid"), s.api} {
		if err := l.Reset(ctx); err != nil {
			return err
		}
	}
	return nil
}

// summarize is one request, which has so much time to begin.
func (s *service) summarize(ctx context.Context, user string, patience time.Duration) {
	ctx, span := s.tracer.Start(ctx, "POST /summary", oteltrace.WithSpanKind(oteltrace.SpanKindServer))
	defer span.End()
	if d, err := s.users.For(user).Allow(ctx); err != nil || !d.Allowed {
		answer(span, 429, err)
		return
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.api.Wait(waiting); err != nil {
		answer(span, 503, err)
		return
	}
	_, call := s.tracer.Start(ctx, "POST api", oteltrace.WithSpanKind(oteltrace.SpanKindClient))
	time.Sleep(120 * time.Millisecond) // the work
	call.End()
	answer(span, 200, nil)
}

// leave is a request whose client goes away while it waits.
func (s *service) leave(ctx context.Context) {
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	time.AfterFunc(80*time.Millisecond, gone)
	ctx, span := s.tracer.Start(ctx, "POST /summary", oteltrace.WithSpanKind(oteltrace.SpanKindServer))
	defer span.End()
	answer(span, 499, s.api.Wait(ctx))
}

// order reserves the next three slots.
func (s *service) order(ctx context.Context) []*headgate.Reservation {
	ctx, span := s.tracer.Start(ctx, "PUT /order", oteltrace.WithSpanKind(oteltrace.SpanKindServer))
	defer span.End()
	var order []*headgate.Reservation
	for range 3 {
		r, err := s.api.Reserve(ctx)
		if err != nil {
			answer(span, 503, err)
			return order
		}
		order = append(order, r)
	}
	answer(span, 200, nil)
	return order
}

// cancel gives an order's slots back, in another request: its spans link to those of the reservations.
func (s *service) cancel(ctx context.Context, order []*headgate.Reservation) {
	ctx, span := s.tracer.Start(ctx, "DELETE /order", oteltrace.WithSpanKind(oteltrace.SpanKindServer))
	defer span.End()
	for i := len(order) - 1; i >= 0; i-- {
		if err := order[i].Cancel(ctx); err != nil {
			answer(span, 503, err)
			return
		}
	}
	answer(span, 200, nil)
}

// answer tells the span how its request ended.
func answer(span oteltrace.Span, status int, err error) {
	span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if _, failed := errors.AsType[*headgate.StoreError](err); failed {
		span.SetStatus(codes.Error, err.Error())
	}
}
