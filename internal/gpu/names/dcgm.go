// SPDX-License-Identifier: Apache-2.0

package names

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// dcgmPrefix begins the names of DCGM's fields.
const dcgmPrefix = "DCGM_FI_"

// dcgmNames has the names of all fields of DCGM 4.6, without the prefix: for each number
// a line with the number, the current name, and former names. It is searched as text,
// so that it takes no memory. The package's test writes it.
//
//go:embed dcgm.txt
var dcgmNames string

// Passed finds a field of DCGM that is not in the gpu package's table, by its name of any
// release or by its number. It returns the name to show. A number that has no name yet
// is shown as DCGM_FI_ and the number, which is also accepted as a name.
func Passed(name string) (id gpu.FieldID, shown string, ok bool) {
	rest, hasPrefix := strings.CutPrefix(name, dcgmPrefix)
	if n, err := strconv.ParseUint(rest, 10, 16); err == nil && n > 0 && rest[0] != '0' {
		return gpu.FieldID(n), NameOf(gpu.FieldID(n)), true
	}
	if !hasPrefix || rest == "" || strings.ContainsAny(rest, " \n") {
		return 0, "", false
	}
	for from := 0; ; {
		at := strings.Index(dcgmNames[from:], " "+rest)
		if at < 0 {
			return 0, "", false
		}
		at += from
		from = at + 1 + len(rest)
		if from < len(dcgmNames) && dcgmNames[from] != ' ' && dcgmNames[from] != '\n' {
			continue // the beginning of a longer name
		}
		line := dcgmNames[strings.LastIndexByte(dcgmNames[:at], '\n')+1:]
		number, _, _ := strings.Cut(line, " ")
		n, err := strconv.ParseUint(number, 10, 16)
		return gpu.FieldID(n), name, err == nil
	}
}

// NameOf returns the current name of a field of DCGM, in the gpu package's table or not.
func NameOf(id gpu.FieldID) string {
	if f, ok := gpu.Lookup(id); ok {
		return f.Name
	}
	_, line, found := strings.Cut("\n"+dcgmNames, fmt.Sprintf("\n%d ", id))
	if !found {
		return dcgmPrefix + strconv.Itoa(int(id))
	}
	line, _, _ = strings.Cut(line, "\n")
	name, _, _ := strings.Cut(line, " ")
	return dcgmPrefix + name
}
