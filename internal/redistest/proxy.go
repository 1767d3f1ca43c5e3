package redistest

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// A Proxy stands between a client and a server, and does to the replies of scripts and of other writes what a bad network does.
// Requests always get through: what is in doubt is never whether the server executed them, but whether the client learns of
// it. So do the greetings of new connections, lest they stand in the way of what a client must not do: ask again.
type Proxy struct {
	Addr string

	mu      sync.Mutex
	fate    Fate
	changed chan struct{} // closed when fate changes
	single  Fate          // of the reply that is due
	due     int           // how many replies from now
	held    chan struct{} // has a value for each reply that is being held
	next    chan struct{} // lets one of them through
	ended   chan struct{} // closed when connections are dead
	end     func()
}

// writes are the commands that a Proxy takes for writes, as clients send them.
var writes = [][]byte{[]byte("\r\nevalsha\r\n"), []byte("\r\neval\r\n"), []byte("\r\ndel\r\n"), []byte("\r\nset\r\n"), []byte("\r\nsadd\r\n")}

// A Fate is what becomes of replies.
type Fate int

const (
	// Pass delivers them.
	Pass Fate = iota
	// Hold keeps them until the fate changes.
	Hold
	// Swallow drops them. The connection stays open.
	Swallow
	// Cut closes the connection instead.
	Cut
	// Dead is the end of the client's process: all connections are closed, and no other is made.
	Dead
)

// NewProxy starts a proxy in front of a server. It ends with the test.
func NewProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		Addr: l.Addr().String(), changed: make(chan struct{}), held: make(chan struct{}, 1000), next: make(chan struct{}),
		ended: make(chan struct{}),
	}
	var wg sync.WaitGroup
	done := p.ended
	p.end = sync.OnceFunc(func() {
		_ = l.Close()
		close(done)
	})
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(client, server, done) })
		}
	})
	t.Cleanup(func() {
		p.end()
		wg.Wait()
	})
	return p
}

// Set changes what becomes of replies from now on, those that are being held included.
func (p *Proxy) Set(fate Fate) {
	if fate == Dead {
		p.end()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fate = fate
	close(p.changed)
	p.changed = make(chan struct{})
}

// SetOne has the n-th reply from now on, counted from 1, meet a fate of its own.
func (p *Proxy) SetOne(n int, fate Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due, p.single = n, fate
}

// Left is how many replies there are to come, at least, until the one that meets a fate of its own has; below 1 if it has.
func (p *Proxy) Left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.due
}

// Ended is closed when the client's process is Dead.
func (p *Proxy) Ended() <-chan struct{} { return p.ended }

// Holding waits until a reply is being held: the server has executed the request, and the client does not know.
func (p *Proxy) Holding() { <-p.held }

// Next delivers a reply that is being held. Those after it are held.
func (p *Proxy) Next() { p.next <- struct{}{} }

// meet is the fate of a reply that has just come.
func (p *Proxy) meet() (Fate, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due--; p.due == 0 {
		return p.single, p.changed
	}
	return p.fate, p.changed
}

func (p *Proxy) current() (Fate, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fate, p.changed
}

// serve carries one connection until either side or the test ends it.
func (p *Proxy) serve(client net.Conn, addr string, done <-chan struct{}) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-done:
		case <-over:
		}
		_ = client.Close()
		_ = server.Close()
	})
	var writing atomic.Bool // the reply that comes next is to a write
	wg.Go(func() {
		defer server.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := client.Read(buffer)
			if err != nil {
				return
			}
			if slices.ContainsFunc(writes, func(command []byte) bool { return bytes.Contains(buffer[:n], command) }) {
				writing.Store(true)
			}
			if _, err := server.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	p.replies(client, server, &writing, done)
	close(over)
	wg.Wait()
}

// replies carries what the server says to the client, as fate has it.
func (p *Proxy) replies(client, server net.Conn, writing *atomic.Bool, done <-chan struct{}) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		fate, changed := Pass, (<-chan struct{})(nil)
		if writing.Swap(false) {
			fate, changed = p.meet()
		}
		for fate == Hold {
			select {
			case p.held <- struct{}{}:
			default: // nobody has asked for a thousand of them
			}
			select {
			case <-changed:
				fate, changed = p.current()
			case <-p.next:
				fate = Pass
			case <-done:
				return
			}
		}
		switch fate {
		case Dead:
			p.end()
			return
		case Cut:
			return
		case Swallow:
		default:
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
}
