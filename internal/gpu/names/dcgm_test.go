// SPDX-License-Identifier: Apache-2.0

package names

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write dcgm.txt")

// dcgm.txt has every name of a field in NVIDIA's header and in go-dcgm, former names
// included: a line for each number, without the names' prefix.
func TestDCGMNames(t *testing.T) {
	const file = "dcgm.txt"
	module, err := exec.Command("go", "-C", "../../../test/godcgm", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-dcgm/pkg/dcgm").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := func(name string) string {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ids, aliases, current := map[string]int{}, map[string]string{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#define\s+(DCGM_FI_\w+)\s+(\w+)[ \t]*(//.*)?$`).FindAllStringSubmatch(source("dcgm_fields.h"), -1) {
		if n, err := strconv.Atoi(m[2]); err == nil {
			ids[m[1]], current[m[1]] = n, true
		} else {
			aliases[m[1]] = m[2]
		}
	}
	for _, m := range regexp.MustCompile(`"(DCGM_FI_\w+)":\s+(\d+)`).FindAllStringSubmatch(source("const_fields.go"), -1) {
		ids[m[1]], _ = strconv.Atoi(m[2])
	}
	for name, of := range aliases {
		if id, ok := ids[of]; ok {
			ids[name] = id
		}
	}
	byID := map[int][]string{}
	for name, id := range ids {
		if !strings.HasSuffix(name, "_FIELD_ID") && !strings.HasSuffix(name, "_MAX_FIELDS") && id > 0 {
			byID[id] = append(byID[id], name)
		}
	}
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		// The current name comes first.
		slices.SortFunc(byID[id], func(a, b string) int {
			if current[a] != current[b] {
				return map[bool]int{true: -1, false: 1}[current[a]]
			}
			return cmp.Compare(a, b)
		})
		fmt.Fprint(&b, id)
		for _, name := range byID[id] {
			b.WriteString(" " + strings.TrimPrefix(name, dcgmPrefix))
		}
		b.WriteByte('\n')
	}
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is not what the header says: run with -update", file)
	}
}
