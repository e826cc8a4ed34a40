package hashfs

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	goFuse = "github.com/hanwen/go-fuse/v2"
	module = "hashfs"
)

// importRules say what packages may import: dependencies point down only. A
// rule binds the package and those below it. Their tests may use a little more:
// see testModules and testOwn.
var importRules = []struct {
	name    string
	pkg     string   // below the module's top
	own     []string // packages of this module that it may import, with those below
	modules []string // other modules' packages that it may import, with those below; "" is all
	not     []string // packages of the standard library that it may not import
	reason  string
}{
	{
		name:    "blockcache",
		pkg:     "blockcache",
		modules: []string{"github.com/hashicorp/golang-lru/v2"},
		not:     []string{"os", "net", "syscall", "io"},
		reason:  "the table of blocks is memory alone: it builds and tests without FUSE, root and network, and cannot block while a lock is held",
	},
	{
		name: "hasher",
		pkg:  "hasher",
		own:  []string{"blockcache"},
		modules: []string{
			"github.com/klauspost/cpuid/v2",
			"github.com/zeebo/blake3",
			"golang.org/x/crypto",
			"golang.org/x/sys",
		},
		not:    []string{"net", "os/exec"},
		reason: "digests are right or wrong whatever shows them: the package builds and tests without FUSE, root and network, and gets its images by an interface",
	},
	{
		name:    "filesrc",
		pkg:     "filesrc",
		own:     []string{"hasher"},
		modules: []string{"golang.org/x/sys"},
		not:     []string{"net", "os/exec"},
		reason:  "a source knows the interface that it satisfies, and not who uses it",
	},
	{
		name:    "nbdsrc",
		pkg:     "nbdsrc",
		own:     []string{"hasher"},
		modules: []string{"golang.org/x/sys"},
		reason:  "a source knows the interface that it satisfies, and not who uses it",
	},
	{
		name: "fs",
		pkg:  "fs",
		own:  []string{"blockcache", "hasher"},
		modules: []string{
			goFuse,
			"github.com/moby/sys/mountinfo",
			"github.com/prometheus/client_golang",
			"github.com/prometheus/common",
			"golang.org/x/sys",
		},
		not:    []string{"net"},
		reason: "the mount shows any source: it must not know one of them",
	},
	{
		name:    "integration",
		pkg:     "integration",
		modules: []string{""},
		reason:  "the program is tested as its users have it, and against digests that its own packages had no part in",
	},
}

// testModules may be imported by the tests of any package.
var testModules = []string{"github.com/google/go-cmp", "golang.org/x/sys"}

// testOwn lets tests of a package use more of this module, with the reason.
var testOwn = map[string][]string{
	"nbdsrc": {"blockcache"}, // an image needs a cache
	"fs":     {"filesrc"},    // real images rather than made-up ones
}

type goPackage struct {
	ImportPath, Dir                    string
	Imports, TestImports, XTestImports []string
	Deps                               []string
	GoFiles, CgoFiles, IgnoredGoFiles  []string
	TestGoFiles, XTestGoFiles          []string
}

func listPackages(t *testing.T) []*goPackage {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-json", "./...")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []*goPackage
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(goPackage)
		if err := in.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) < len(importRules) {
		t.Fatalf("go list found only %d packages", len(packages))
	}
	return packages
}

// within reports whether path is one of the packages or lies below one; all
// lie below "".
func within(path string, packages ...string) bool {
	return slices.ContainsFunc(packages, func(p string) bool {
		return p == "" || path == p || strings.HasPrefix(path, p+"/")
	})
}

// isStandard reports whether path is of the standard library: no module of
// others is without a dot in its first element.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return first != module && !strings.Contains(first, ".")
}

func TestImports_point_down(t *testing.T) {
	packages := listPackages(t)
	for _, rule := range importRules {
		t.Run(rule.name, func(t *testing.T) {
			at := module + "/" + rule.pkg
			bound := 0
			check := func(p *goPackage, imports, own, modules, not []string) {
				for _, path := range imports {
					rel, isOwn := strings.CutPrefix(path, module+"/")
					allowed := within(path, modules...)
					switch {
					case isOwn:
						allowed = within(path, at) || within(rel, own...)
					case isStandard(path):
						allowed = !within(path, not...)
					}
					if !allowed && path != "C" {
						t.Errorf("%s imports %s: %s", p.ImportPath, path, rule.reason)
					}
				}
			}
			for _, p := range packages {
				if !within(p.ImportPath, at) {
					continue
				}
				bound++
				check(p, p.Imports, rule.own, rule.modules, rule.not)
				check(p, append(p.TestImports, p.XTestImports...),
					slices.Concat(rule.own, testOwn[rule.pkg]), slices.Concat(rule.modules, testModules), nil)
			}
			if bound == 0 {
				t.Errorf("there is no package %s", at)
			}
		})
	}
}

// TestImports_of_one_package_only checks what a single package may import.
func TestImports_of_one_package_only(t *testing.T) {
	for _, p := range listPackages(t) {
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if within(path, goFuse) && !within(p.ImportPath, module+"/fs") {
				t.Errorf("%s imports %s: only fs knows what serves the mount, so that errno and inode stay out of the rest", p.ImportPath, path)
			}
			if path == "C" && !within(p.ImportPath, module+"/nbdsrc") {
				t.Errorf("%s uses cgo: only nbdsrc may, so that all else builds and cross-compiles without a C compiler", p.ImportPath)
			}
		}
	}
}

// TestImports_of_pure_packages looks at all that they draw in, by whatever way.
func TestImports_of_pure_packages(t *testing.T) {
	for _, p := range listPackages(t) {
		if !within(p.ImportPath, module+"/blockcache", module+"/hasher") {
			continue
		}
		for _, path := range p.Deps {
			if within(path, "net", "os/user", "runtime/cgo", goFuse) {
				t.Errorf("%s draws in %s: it has to build and run without network, users, C and FUSE", p.ImportPath, path)
			}
		}
	}
}

// TestPackage_comments: each package says what it is, once.
func TestPackage_comments(t *testing.T) {
	for _, p := range listPackages(t) {
		var commented []string
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Error(err)
			} else if f.Doc != nil {
				commented = append(commented, name)
			}
		}
		if len(commented) != 1 {
			t.Errorf("%s has a package comment in %d files, not in one: %q", p.ImportPath, len(commented), commented)
		}
	}
}

// unfinished is written so that it does not match itself.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)

// TestNothing_unfinished: what is in the tree is done, or not in the tree.
func TestNothing_unfinished(t *testing.T) {
	looked := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path == ".git" || path == "build" {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		looked++
		if mark := unfinished.Find(content); mark != nil {
			t.Errorf("%s: %s", path, mark)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if looked < 50 {
		t.Errorf("only %d files were found", looked)
	}
}

// TestDocs_links: what the documents point to is there.
func TestDocs_links(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, path := range append(documents, "README.md", "CHANGELOG.md", "CONTRIBUTING.md") {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		for _, link := range links.FindAllStringSubmatch(string(content), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), link[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d links were found", checked)
	}
}
