package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// An nbdServer serves a file on a socket, while it is under measurement.
type nbdServer struct {
	uri string
	end func()
}

// serve starts a server that argv, given the socket, tells how to start. The
// socket lies beside the data, where an nbdcopy in a tree of its own sees it.
func (l *lab) serve(ctx context.Context, argv func(socket string) []string) (*nbdServer, error) {
	dir, err := os.MkdirTemp(l.data.dir, "nbd-")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "s")
	line := argv(socket)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	if err := cmd.Start(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait() // how it ends does not matter
		close(ended)
	}()
	s := &nbdServer{uri: "nbd+unix:///?socket=" + (&url.URL{Path: socket}).EscapedPath(), end: func() {
		cmd.Process.Kill()
		<-ended
		os.RemoveAll(dir)
	}}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			return s, nil
		}
		select {
		case <-ended:
		default:
			if time.Now().Before(deadline) {
				continue
			}
		}
		s.end()
		return nil, fmt.Errorf("%s does not serve", line[0])
	}
}

// qemuServer and nbdkitServer serve a file as people start them by hand.
func (l *lab) qemuServer(ctx context.Context, format, path string) (*nbdServer, error) {
	return l.serve(ctx, func(socket string) []string {
		return []string{l.tools.qemuNBD, "-r", "-t", "--shared=8", "-f", format, "-k", socket, path}
	})
}

func (l *lab) nbdkitServer(ctx context.Context, path string) (*nbdServer, error) {
	return l.serve(ctx, func(socket string) []string {
		return []string{l.tools.nbdkit, "-f", "-r", "-U", socket, "file", path}
	})
}

func (l *lab) needServers() error {
	return errors.Join(
		need("qemu-nbd", l.tools.qemuNBD), need("nbdkit", l.tools.nbdkit),
		need("qemu-img", l.tools.qemuImg), need("nbdcopy", l.tools.plainNBDCopy))
}

// exportExperiment reads an export over a socket.
func exportExperiment(name string, start func(*lab, context.Context, string) (*nbdServer, error)) *experiment {
	return &experiment{"export-" + name, []*row{{
		work: "hashfs sum, 4 GiB of random data from " + name, peer: "nbdcopy URI null:",
		target: atMost(1.4), unit: seconds,
		why:    "nbdcopy only takes the bytes from the socket; hashfs hashes them besides, while the server has the same two cores.",
		limits: "On one machine server and client share the cores, which over a network they do not.",
	}, {
		work: "the same", peer: "nbdcopy --blkhash URI null:",
		target: atMost(0.35), unit: seconds,
		why:    "Both compute the same digest of the same export.",
		limits: "As for a file: its way of hashing can change with its version.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		if err := l.needServers(); err != nil {
			return missingTool(err.Error())
		}
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		s, err := start(l, ctx, f)
		if err != nil {
			return err
		}
		defer s.end()
		ours := warmed(f, timed(l.sum(s.uri)...))
		if err := l.race(ctx, rows[0], ours, warmed(f, timed(l.tools.plainNBDCopy, s.uri, "null:"))); err != nil {
			return err
		}
		if l.tools.nbdcopy == "" {
			rows[1].missing = l.tools.nbdcopyMissing
			return nil
		}
		return l.race(ctx, rows[1], ours, warmed(f, timed(l.tools.nbdcopy, "--blkhash", s.uri, "null:")))
	}}
}

func exportedHoleExperiment() *experiment {
	return &experiment{"export-hole", []*row{{
		work: "hashfs sum, a hole of 1000 GiB from nbdkit", peer: "hashfs sum of the file",
		target: atMost(1.3), unit: seconds,
		why:    "The server tells the hole by block status, a few gigabytes at a time.",
		limits: "Of a hole nothing is read; it says nothing about data.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		if err := l.needServers(); err != nil {
			return missingTool(err.Error())
		}
		f, err := l.data.get(ctx, hole)
		if err != nil {
			return err
		}
		s, err := l.nbdkitServer(ctx, f)
		if err != nil {
			return err
		}
		defer s.end()
		return l.race(ctx, rows[0], timed(l.sum(s.uri)...), timed(l.sum(f)...))
	}}
}

func qcow2Experiment() *experiment {
	return &experiment{"qcow2", []*row{{
		work: "hashfs sum, a qcow2 with 4 GiB of random data", peer: "hashfs sum of a qemu-nbd started by hand",
		target: atMost(1.1), unit: seconds,
		why:    "hashfs starts a qemu-nbd itself, after a check of the image's chain.",
		limits: "Both sides are hashfs and qemu-nbd: it shows the price of starting one.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		if err := l.needServers(); err != nil {
			return missingTool(err.Error())
		}
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		image := filepath.Join(l.data.dir, "image.qcow2")
		defer os.Remove(image)
		if _, err := command(ctx, l.tools.qemuImg, "convert", "-f", "raw", "-O", "qcow2", f, image); err != nil {
			return err
		}
		s, err := l.qemuServer(ctx, "qcow2", image)
		if err != nil {
			return err
		}
		defer s.end()
		return l.race(ctx, rows[0], warmed(image, timed(l.sum(image)...)), warmed(image, timed(l.sum(s.uri)...)))
	}}
}
