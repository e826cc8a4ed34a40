package cli

import (
	"bufio"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
)

// A log that takes nothing, here a pipe that nobody reads, holds nobody up. What
// there was room for comes when it is read, and how many messages are lost.
func TestQueueHandler_stuckLog(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	log := slog.New(newQueueHandler(slog.NewTextHandler(w, nil))).With("image", "x")
	const messages = 5000 // more than a pipe takes and a queue holds
	begun := time.Now()
	for i := range messages {
		log.Info("message", "n", i)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("%d messages took %v", messages, took)
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Lost itself, maybe, until the queue has room again.
		for range 300 {
			log.Info("last")
			time.Sleep(time.Millisecond)
		}
		w.Close()
	}()
	lines := bufio.NewScanner(r)
	got, lost, last := 0, false, false
	for lines.Scan() {
		switch text := lines.Text(); {
		case strings.Contains(text, "messages were lost"):
			lost = true
		case strings.Contains(text, "msg=message image=x"):
			got++
		case strings.Contains(text, "msg=last image=x"):
			last = true
		}
	}
	<-ended
	if got < maxQueued || got >= messages || !lost {
		t.Errorf("%d of %d messages came, told that some were lost: %v", got, messages, lost)
	}
	if !last {
		t.Error("no message came after the log was read again")
	}
}

// Where the log takes messages, each is written when its call returns.
func TestQueueHandler_waits(t *testing.T) {
	var out strings.Builder
	log := slog.New(newQueueHandler(slog.NewTextHandler(&out, nil)))
	for i := range 100 {
		log.Info("message")
		if n := strings.Count(out.String(), "msg=message"); n != i+1 {
			t.Fatalf("%d messages are written after %d calls", n, i+1)
		}
	}
}
