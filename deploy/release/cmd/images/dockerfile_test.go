// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// The Dockerfile's images have the settings of ours.
func TestDockerfile(t *testing.T) {
	data, err := os.ReadFile("../../../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		_, stage, _ := strings.Cut(string(data), "FROM scratch AS "+p.name+"\n")
		got, _, _ := strings.Cut(stage, "\n\n")
		want := "COPY --from=build /rootfs/" + p.name + " /\n"
		for _, e := range p.config.Env {
			want += "ENV " + e + "\n"
		}
		for _, port := range slices.Sorted(maps.Keys(p.config.ExposedPorts)) {
			want += "EXPOSE " + port + "\n"
		}
		want += fmt.Sprintf("USER %s\nENTRYPOINT [%q]", p.config.User, p.config.Entrypoint[0])
		if strings.TrimSpace(got) != want {
			t.Errorf("the stage %s is\n%s\nwant\n%s", p.name, got, want)
		}
	}
}
