package qemunbd

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nobodyGID stands for the groups of a user that the system does not know.
const nobodyGID = 65534

// An owner is a user whose rights decide what an image may lead to.
type owner struct {
	uid    uint32
	name   string
	file   string   // one that he owns
	groups []uint32 // the primary one first
	by     rights
}

type rights int

const (
	rightsOurs rights = iota // ours are no more than the owner's, or are trusted
	rightsTake               // we are root: take on the owner's
	rightsMode               // go by mode bits
)

// newOwner returns the owner of a file.
func newOwner(m *member, trust bool) *owner {
	st := &m.st
	o := &owner{uid: st.Uid, file: m.place.path, name: "uid " + strconv.Itoa(int(st.Uid))}
	if u, err := user.LookupId(strconv.Itoa(int(st.Uid))); err == nil {
		o.name = u.Username
		o.addGroup(u.Gid)
		ids, _ := u.GroupIds() // fewer groups mean fewer rights
		for _, id := range ids {
			o.addGroup(id)
		}
	}
	if len(o.groups) == 0 {
		o.groups = []uint32{nobodyGID}
	}
	switch {
	case trust || st.Uid == 0:
		o.by = rightsOurs
	case os.Geteuid() == 0:
		o.by = rightsTake
	case uint32(os.Geteuid()) == st.Uid && !mayOverride():
		o.by = rightsOurs
	default:
		o.by = rightsMode
	}
	return o
}

func (o *owner) addGroup(id string) {
	gid, err := strconv.ParseUint(id, 10, 32)
	if err == nil && !slices.Contains(o.groups, uint32(gid)) {
		o.groups = append(o.groups, uint32(gid))
	}
}

// open opens the file at the place that find returns, if the owner could.
// allowed is false when only we can.
func (o *owner) open(find func() (*place, error), writable bool) (m *member, allowed bool, err error) {
	try := func() (err error) {
		m, err = openMember(find, writable)
		return err
	}
	if o.by == rightsTake {
		err = o.do(try)
		if err == nil || !denied(err) {
			return m, err == nil, err
		}
	}
	if err := try(); err != nil {
		return nil, false, err
	}
	switch o.by {
	case rightsOurs:
		return m, true, nil
	case rightsMode:
		return m, o.allows(m, writable), nil
	}
	return m, false, nil
}

func denied(err error) bool { return err == unix.EACCES || err == unix.EPERM }

// do calls f on a thread of its own that has the owner's rights to files, as
// setfsuid(2) and setfsgid(2) give them, and no capabilities.
func (o *owner) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, and Go
		// starts no others from one that is locked.
		runtime.LockOSThread()
		if err := o.become(); err != nil {
			done <- fmt.Errorf("take on the rights of %s to check the image's chain: %w (chain=trust does without)", o.name, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// become changes the calling thread alone: these are system calls without the
// C library, which would change all threads.
func (o *owner) become() error {
	n := uintptr(len(o.groups))
	if _, _, errno := unix.RawSyscall(sysSetgroups, n, uintptr(unsafe.Pointer(&o.groups[0])), 0); errno != 0 {
		return fmt.Errorf("setgroups: %w", errno)
	}
	unix.Setfsgid(int(o.groups[0]))
	unix.Setfsuid(int(o.uid))
	// They tell of no failure, but of what held before.
	gid, _ := unix.SetfsgidRetGid(-1)
	uid, _ := unix.SetfsuidRetUid(-1)
	if uint32(gid) != o.groups[0] || uint32(uid) != o.uid {
		return fmt.Errorf("setfsuid: %w", unix.EPERM)
	}
	hdr, data, err := capabilities()
	if err != nil {
		return err
	}
	for i := range data {
		data[i].Effective = 0
	}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

func capabilities() (hdr unix.CapUserHeader, data [2]unix.CapUserData, err error) {
	hdr.Version = unix.LINUX_CAPABILITY_VERSION_3
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return hdr, data, fmt.Errorf("capget: %w", err)
	}
	return hdr, data, nil
}

// mayOverride reports whether we have more rights to files than our user has.
func mayOverride() bool {
	_, data, err := capabilities()
	const override = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	return err != nil || data[0].Effective&override != 0
}

// allows reports whether the owner could open a file that we have opened, by
// mode bits alone. It says no where it cannot tell.
func (o *owner) allows(m *member, writable bool) bool {
	need := uint32(4)
	if writable {
		need |= 2
	}
	if !o.has(&m.st, need, hasACL(procFD(int(m.file.Fd())))) {
		return false
	}
	real, err := filepath.EvalSymlinks(m.place.path)
	if err != nil {
		return false
	}
	for _, path := range []string{m.place.path, real} {
		for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
			var st unix.Stat_t
			if unix.Stat(dir, &st) != nil || !o.has(&st, 1, hasACL(dir)) {
				return false
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return true
}

// has reports whether mode bits give the owner all of need (4 read, 2 write, 1
// search). With an access control list they tell of the file's own user only.
func (o *owner) has(st *unix.Stat_t, need uint32, acl bool) bool {
	switch {
	case st.Uid == o.uid:
		return st.Mode>>6&need == need
	case acl:
		return false
	case slices.Contains(o.groups, st.Gid):
		return st.Mode>>3&need == need
	}
	return st.Mode&need == need
}

func hasACL(path string) bool {
	_, err := unix.Getxattr(path, "system.posix_acl_access", nil)
	return err == nil || err != unix.ENODATA && err != unix.EOPNOTSUPP
}
