package nbdsrc

import "time"

// A lane is a connection that one reader at a time has to himself. His own
// thread takes the replies from the socket, so that none is woken by another
// for each of them: over a connection that is shared, a pass over the image
// took half as much processor time again.
//
// While nobody has it nobody looks after it: that the server is lost is then
// seen by the others, and by its next user.
type lane struct {
	conn   *conn
	flight *flight
	s      *session
	taken  bool // guarded by the session's joining
	landed bool // the connection is let go of
}

// laneSpin is for how long a lane's reader looks for a reply before his thread
// sleeps: a server on the same machine has the next part of one ready sooner than
// a processor that went to sleep is awake. Measured with qemu-nbd and nbdkit on 2
// virtual processors: hashfs sum takes a tenth less time so.
const laneSpin = 50 * time.Microsecond

// addLane adds a connection that is a lane, unless the session is over.
func (s *session) addLane(c *conn) bool {
	s.joining.Lock()
	defer s.joining.Unlock()
	if s.over.Err() != nil {
		return false
	}
	c.h.spin(laneSpin)
	c.replied = &s.replied
	s.lanes = append(s.lanes, &lane{conn: c, flight: newFlight(c), s: s})
	return true
}

// takeLane returns a lane that nobody has, or nil.
func (s *session) takeLane() *lane {
	s.joining.Lock()
	defer s.joining.Unlock()
	for _, l := range s.lanes {
		if !l.taken {
			l.taken = true
			return l
		}
	}
	return nil
}

// giveBack ends the use of a lane that has nothing under way.
func (l *lane) giveBack() {
	l.s.joining.Lock()
	over := l.s.over.Err() != nil
	l.taken = false
	l.s.joining.Unlock()
	if over {
		l.land(errEnded)
	}
}

// land lets go of the connection and finishes what was under way with an error.
func (l *lane) land(cause error) {
	if !l.landed {
		l.landed = true
		l.flight.land(cause)
	}
}

// await sends what was submitted, and waits until r is done, but for patience
// at most unless that is negative. It reports whether r is done. After a
// failure of the connection all requests are.
func (l *lane) await(r *request, patience time.Duration) bool {
	limit := time.Now().Add(patience)
	for first := true; ; first = false {
		wait := -1
		switch {
		case r.isDone() && !l.conn.queued():
			return true
		case r.isDone():
			wait = 0
		case patience >= 0:
			left := time.Until(limit)
			if left <= 0 && !first {
				return false
			}
			wait = milliseconds(left)
		}
		// It comes back early when a signal of Go's runtime interrupts it.
		if cause, since := l.flight.turn(wait); cause != nil {
			l.s.fail(cause, since)
			l.land(cause)
			return true
		}
		if r.isDone() {
			return true
		}
	}
}
