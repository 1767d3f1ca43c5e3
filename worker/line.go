package worker

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
)

var (
	//go:embed learn.lua
	learnLua string
	//go:embed arrive.lua
	arriveLua string
	//go:embed release.lua
	releaseLua string
	//go:embed settle.lua
	settleLua string
	//go:embed due.lua
	dueLua string
	//go:embed wake.lua
	wakeLua string
	//go:embed bring.lua
	bringLua string
)

// scripts are those of lines; learn.lua says what a line is.
type scripts struct{ arrive, release, settle, due, wake, bring *redis.Script }

func newScripts() scripts {
	return scripts{
		arrive:  redis.NewScript(learnLua + arriveLua),
		release: redis.NewScript(learnLua + releaseLua),
		settle:  redis.NewScript(learnLua + settleLua),
		due:     redis.NewScript(dueLua),
		wake:    redis.NewScript(wakeLua),
		bring:   redis.NewScript(bringLua),
	}
}

// A line is where the tasks of one key stand.
type line struct {
	*Throttle
	limiter *headgate.Limiter
	key     string // given by WithKey
	keys    []string
}

// lineOf finds the line of a key, "" for the limiter itself. A promoter may find keys of another throttle of the limiter,
// whether its own has keys or not.
func (t *Throttle) lineOf(key string) line {
	l := t.limiter
	if key != "" {
		l = l.For(key)
	}
	return line{
		Throttle: t, limiter: l, key: key,
		keys: []string{l.StoredKey("tickets"), l.StoredKey("released"), l.StoredKey("line")},
	}
}

// waitingKey is where the limiter's lines are that are not empty.
func (t *Throttle) waitingKey() string { return t.limiter.StoredKey("waiting") }

// A member names a task in a line. IDs are unique in their queue only.
func member(cost int, queue, id string) string {
	return fmt.Sprintf("%d:%d:%s%s", cost, len(queue), queue, id)
}

// parseMember is the other way round.
func parseMember(member string) (queue, id string, ok bool) {
	parts := strings.SplitN(member, ":", 3)
	if len(parts) != 3 {
		return "", "", false
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil || n < 0 || n > len(parts[2]) {
		return "", "", false
	}
	return parts[2][:n], parts[2][n:], true
}

// A verdict is what a task that arrives is told.
type verdict int64

// As in arrive.lua.
const (
	nobodyWaits verdict = iota
	returned
	stand
	full
)

// A standing is where a task stands in its line.
type standing struct {
	verdict verdict
	place   int64         // to be given back if the claim is refused
	wait    time.Duration // until its slot, as far as the line tells
	known   bool          // the line's pace is known
	forced  bool          // reserve like a Wait
}

// What a task wants of its line, as in arrive.lua.
const (
	wantArrive = "arrive"
	wantLook   = "look"
	wantJoin   = "join"
	wantYield  = "yield"
)

// arrive tells a task what to do. Who holds no ticket takes one if others stand here, unless take is false.
func (l line) arrive(ctx context.Context, member string, cost int, take bool) (standing, error) {
	want := wantArrive
	if !take {
		want = wantLook
	}
	return l.call(ctx, member, want, 0, "", cost)
}

// join takes a ticket after a refused claim, at the place that the task had, if any. The slot is the one that was too far off,
// the zero time if it is not known.
func (l line) join(ctx context.Context, member string, place int64, slot time.Time, cost int) (standing, error) {
	return l.standAgain(ctx, member, wantJoin, place, slot, cost)
}

// yield takes a ticket at the end of the line, for one who may not wait for the slot that there is, however long it stands
// before the others.
func (l line) yield(ctx context.Context, member string, place int64, slot time.Time, cost int) (standing, error) {
	return l.standAgain(ctx, member, wantYield, place, slot, cost)
}

func (l line) standAgain(ctx context.Context, member, want string, place int64, slot time.Time, cost int) (standing, error) {
	ahead := ""
	if !slot.IsZero() {
		ahead = strconv.FormatInt(max(time.Until(slot).Microseconds(), 1), 10)
	}
	return l.call(ctx, member, want, place, ahead, cost)
}

func (l line) call(ctx context.Context, member, want string, place int64, off string, cost int) (standing, error) {
	n, err := l.scripts.arrive.Run(ctx, l.rdb, l.keys, member, want, place, off, cost,
		l.opts.grace.Microseconds(), l.opts.most, l.ttl().Milliseconds(), l.paces.of(l.key).Microseconds()).Int64Slice()
	if err != nil || len(n) != 6 {
		return standing{}, l.failed(err)
	}
	if n[5] == 1 {
		err = l.wake(ctx)
	}
	return standing{
		verdict: verdict(n[0]), place: n[1], wait: time.Duration(min(n[2], longest.Microseconds())) * time.Microsecond,
		known: n[3] == 1, forced: n[4] == 1,
	}, err
}

// wake tells the promoters that the line has tickets.
func (l line) wake(ctx context.Context) error {
	err := l.scripts.wake.Run(ctx, l.rdb, []string{l.waitingKey()}, l.key, l.ttl().Milliseconds()).Err()
	l.promoter.poke()
	return l.failed(err)
}

// release asks which tickets shall come back now, where the limiter has told when its next slot is. If that is far off, it is
// soon enough to look again after the time that is given.
func (l line) release(ctx context.Context, d headgate.Decision, far time.Duration) (members []string, next time.Duration, err error) {
	reply, err := l.scripts.release.Run(ctx, l.rdb, l.keys, d.RetryAfter.Microseconds(), d.Remaining,
		l.lead.Microseconds(), max(l.lead, l.opts.inPlace/2).Microseconds(), l.concurrency, l.opts.grace.Microseconds(),
		l.opts.patience.Microseconds(), tick.Microseconds(), l.ttl().Milliseconds(),
		d.Limit, d.ResetAfter.Microseconds(), far.Microseconds()).StringSlice()
	if err != nil {
		return nil, 0, l.failed(err)
	}
	us, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		return nil, 0, l.failed(errReply)
	}
	return reply[1:], time.Duration(us) * time.Microsecond, nil
}

// settle says what became of tasks that were released: pairs of member and outcome.
func (l line) settle(ctx context.Context, outcomes []any) error {
	if len(outcomes) == 0 {
		return nil
	}
	return l.failed(l.scripts.settle.Run(ctx, l.rdb, l.keys, append([]any{l.opts.grace.Microseconds()}, outcomes...)...).Err())
}

// leave gives a ticket up.
func (l line) leave(ctx context.Context, member string) error {
	return l.settle(ctx, []any{member, drop})
}

// Outcomes, as in settle.lua.
const (
	drop  = "drop"
	park  = "park"
	later = "later"
	back  = "back"
)

// ttl is how long what is stored outlives the last change: a ticket's task is back before.
func (t *Throttle) ttl() time.Duration { return t.opts.putOff + time.Hour }

var errReply = errors.New("the reply is not that of Headgate's script")

// failed makes the error of a call that has failed; nil if it has not.
func (t *Throttle) failed(err error) error {
	if err == nil {
		return nil
	}
	// Redis quotes the arguments of a command that it does not know, and a user's key is among them.
	public, _, _ := strings.Cut(t.waitingKey(), "{")
	if text, _, found := strings.Cut(err.Error(), public+"{"); found {
		err = &redacted{text + "(a key)", err}
	}
	return &headgate.StoreError{Op: "tickets", Unknown: true, Err: err}
}

// A redacted error says less than its cause, and is it in all else.
type redacted struct {
	text  string
	cause error
}

func (e *redacted) Error() string { return e.text }
func (e *redacted) Unwrap() error { return e.cause }
