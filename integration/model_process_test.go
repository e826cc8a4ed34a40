package integration

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

var (
	modelTime = flag.Duration("model.time", 0, "how long TestModel goes on (default 12s, 4s with -short)")
	modelSeed = flag.Uint64("model.seed", 0, "seed of TestModel (default: another one each time)")
)

// modelRole is the environment variable that makes the test binary a process
// of the model test: "writer 2" or "reader 7".
const (
	modelRole = "HASHFS_TEST_MODEL_ROLE"
	modelPlan = "HASHFS_TEST_MODEL_PLAN"
)

// init takes the role before the flags of the test binary are looked at, and
// before TestMain builds anything.
func init() {
	var role string
	var number int
	if _, err := fmt.Sscan(os.Getenv(modelRole), &role, &number); err != nil {
		return
	}
	p := new(plan)
	err := json.Unmarshal([]byte(os.Getenv(modelPlan)), p)
	if err == nil && role == "writer" {
		err = runModelWriter(p, number)
	} else if err == nil {
		err = runModelReader(p, number)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s %d: %v\n", role, number, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Several processes write, punch and read digests at once, readers are killed
// at random, and so is the daemon, which is mounted again. Each file of digests
// shows one moment of the image between the call and the return of its open(2),
// for as long as it is open; a model of the image, changed by the same
// operations, says which moments there were.
func TestModel_processes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		bs    int64
		size  int64
		flags []string
		stale bool
	}{
		{"small blocks", 4096, 4*mib + 1234, nil, false},
		{"default blocks, little cache", blockSize, 9*mib + 1, []string{"--cache-size=4k", "--jobs=3"}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			seed := *modelSeed
			if seed == 0 {
				seed = rand.Uint64N(1e9)
			}
			t.Logf("seed %d", seed)
			p := &plan{Seed: seed, Size: row.size, Bs: row.bs, Writers: 3, Dir: scratch(t), Stale: row.stale}
			newModelRun(t, p, append(row.flags, "--writable", fmt.Sprintf("--digest=sha256/%d", row.bs))).run()
		})
	}
}

// A modelRun is the process that starts and kills the others.
type modelRun struct {
	*plan
	*board
	t       *testing.T
	rng     *rand.Rand
	flags   []string
	disk    *diskMount
	writers []*child
	readers []*child
	kills   int // of readers
}

// A child is a process of the model test.
type child struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
}

func newModelRun(t *testing.T, p *plan, flags []string) *modelRun {
	backing := filepath.Join(p.Dir, "backing.img")
	writeSparse(t, backing, p.Size)
	d := mountDisk(t, backing, flags...)
	d.expect("some blocks will be hashed again and again")
	d.bs, p.Mount = p.Bs, d.dir
	b, err := openBoard(p)
	if err != nil {
		t.Fatal(err)
	}
	r := &modelRun{plan: p, board: b, t: t, rng: rand.New(rand.NewPCG(p.Seed, 99)), flags: flags, disk: d}
	t.Cleanup(func() {
		for _, c := range append(r.writers, r.readers...) {
			c.cmd.Process.Kill()
			<-c.ended
		}
	})
	return r
}

func (r *modelRun) start(role string, number int) *child {
	r.t.Helper()
	shared, err := json.Marshal(r.plan)
	if err != nil {
		r.t.Fatal(err)
	}
	c := &child{cmd: exec.Command("/proc/self/exe"), ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), modelRole+"="+role+" "+strconv.Itoa(number), modelPlan+"="+string(shared))
	c.cmd.Stderr = &c.stderr
	if err := c.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() { c.cmd.Wait(); close(c.ended) }()
	return c
}

const modelReaders = 3

func (r *modelRun) run() {
	length := *modelTime
	if length == 0 {
		length = 6 * time.Second
		if testing.Short() {
			length = 2 * time.Second
		}
	}
	end := time.Now().Add(length)
	for w := range r.Writers {
		r.writers = append(r.writers, r.start("writer", w))
	}
	for n := range modelReaders {
		r.readers = append(r.readers, r.start("reader", n))
	}
	r.publish()
	remounts := 0
	for !r.t.Failed() && time.Now().Before(end) {
		time.Sleep(time.Duration(50+r.rng.IntN(250)) * time.Millisecond)
		r.killReader()
		if r.rng.IntN(8) == 0 {
			r.remount()
			remounts++
		}
		r.lookAfter()
	}
	if remounts == 0 && !r.t.Failed() {
		r.remount()
	}
	r.finish()
	ops := uint64(0)
	for w := range r.Writers {
		ops += r.board.writers[w].completed.Load()
	}
	r.t.Logf("%d ops, %d views with %d reads, %d too uncertain, %d stale; %d readers killed, %d daemons",
		ops, r.views.Load(), r.reads.Load(), r.skipped.Load(), r.stale.Load(), r.kills, max(1, remounts))
}

// publish lets writers, and then readers, go to the mount that there is.
func (r *modelRun) publish() {
	r.t.Helper()
	now := r.mounts.Add(1)
	deadline := time.Now().Add(patience)
	for w := range r.Writers {
		for r.board.writers[w].mount.Load() != now {
			time.Sleep(time.Millisecond)
			if r.lookAfter(); r.t.Failed() {
				return
			}
			if time.Now().After(deadline) {
				r.t.Errorf("writer %d does not come to mount %d", w, now)
				return
			}
		}
	}
	r.ready.Store(now)
}

// killReader ends a reader in the midst of its work, and starts another.
func (r *modelRun) killReader() {
	i := r.rng.IntN(len(r.readers))
	c := r.readers[i]
	s := []syscall.Signal{syscall.SIGKILL, syscall.SIGINT}[r.rng.IntN(2)]
	c.cmd.Process.Signal(s)
	select {
	case <-c.ended:
	case <-time.After(patience):
		r.t.Errorf("a reader does not end by %v", s)
		return
	}
	r.report(c)
	r.kills++
	r.readers[i] = r.start("reader", 10*r.kills+i)
}

// remount kills the daemon and mounts again at the same place.
func (r *modelRun) remount() {
	r.ready.Store(0)
	r.disk.kill()
	old := r.disk
	r.disk = &diskMount{mountWith(r.t, mountOptions{point: old.dir}, append(r.flags, "disk="+old.backing)...), old.backing, old.bs}
	r.disk.expect("some blocks will be hashed again and again", "cleared a mount whose daemon is gone")
	r.publish()
}

// lookAfter fails the test when a process has ended that should not have.
func (r *modelRun) lookAfter() {
	for _, c := range append(r.writers, r.readers...) {
		select {
		case <-c.ended:
			r.report(c)
			if !r.t.Failed() {
				r.t.Errorf("%q has ended", c.cmd.Env[len(c.cmd.Env)-2:])
			}
		default:
		}
	}
}

// report fails the test when a process that has ended had found something.
func (r *modelRun) report(c *child) {
	if c.stderr.Len() > 0 {
		r.t.Error(c.stderr.String())
		c.stderr.Reset()
	}
}

// finish ends all processes, and compares what is left with the model.
func (r *modelRun) finish() {
	r.stop.Store(1)
	for _, c := range append(r.writers, r.readers...) {
		select {
		case <-c.ended:
			r.report(c)
		case <-time.After(patience):
			r.t.Errorf("%q does not end", c.cmd.Env[len(c.cmd.Env)-2:])
			return
		}
	}
	if r.t.Failed() {
		return
	}
	m, err := openModel(r.plan)
	if err != nil {
		r.t.Fatal(err)
	}
	sameBytes(r.t, "backing file", []byte(readFile(r.t, r.disk.backing)), m.bytes)
	// A file system calls reserved storage data once somebody has read it, and
	// no stamp tells: with a write the map is asked for again, after the reading.
	if _, err := r.disk.open(os.O_WRONLY).WriteAt(m.bytes[:1], 0); err != nil {
		r.t.Fatal(err)
	}
	r.disk.check("after all")
	if r.views.Load() == 0 || r.reads.Load() < r.views.Load() {
		r.t.Errorf("%d views, %d reads: nothing was tested", r.views.Load(), r.reads.Load())
	}
}
