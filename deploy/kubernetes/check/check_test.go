// Package check renders the manifests and checks them: against the types of Kubernetes's API, and against the rules of
// this directory.
package check

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the files rules.yaml from the alert rules of Prometheus")

// must fails the test at once if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// render returns the objects of a kustomization. It fails the test if one of them is of an unknown type, or has a
// field that the type does not have, or the same field twice.
func render(t *testing.T, dir string) (objects []runtime.Object) {
	t.Helper()
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	must(t, err)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, autoscaling.AddToScheme, batch.AddToScheme, core.AddToScheme, monitoring.AddToScheme, networking.AddToScheme, policy.AddToScheme,
	} {
		must(t, add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, resource := range rendered.Resources() {
		text, err := resource.AsYAML()
		must(t, err)
		object, _, err := decoder.Decode(text, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", resource.CurId(), err)
			continue
		}
		objects = append(objects, object)
	}
	return objects
}

// withAll returns the directory of a kustomization of the base with all components, also those of the other modules.
func withAll(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	relative := func(path string) string {
		absolute, err := filepath.Abs(path)
		must(t, err)
		path, err = filepath.Rel(dir, absolute)
		must(t, err)
		return path
	}
	all := types.Kustomization{Resources: []string{relative("../base")}}
	all.Kind, all.APIVersion = types.KustomizationKind, types.KustomizationVersion
	for _, file := range append(glob(t, "../*/kustomization.yaml"),
		glob(t, "../../../*/deploy/kubernetes/kustomization.yaml")...) {
		text, err := os.ReadFile(file)
		must(t, err)
		if bytes.Contains(text, []byte("kind: Component")) {
			all.Components = append(all.Components, relative(filepath.Dir(file)))
		}
	}
	text, err := yaml.Marshal(all)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600))
	return dir
}

// glob returns the paths that match a pattern.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	must(t, err)
	return paths
}

// of returns the objects of one type by their names.
func of[T runtime.Object](t *testing.T, objects []runtime.Object) map[string]T {
	t.Helper()
	found := map[string]T{}
	for _, object := range objects {
		if typed, ok := object.(T); ok {
			accessor, err := meta.Accessor(object)
			must(t, err)
			found[accessor.GetName()] = typed
		}
	}
	return found
}

// pods returns the pod templates by the name of the deployment or job.
func pods(t *testing.T, objects []runtime.Object) map[string]core.PodTemplateSpec {
	t.Helper()
	all := map[string]core.PodTemplateSpec{}
	for name, d := range of[*apps.Deployment](t, objects) {
		all[name] = d.Spec.Template
	}
	for name, job := range of[*batch.Job](t, objects) {
		all[name] = job.Spec.Template
	}
	return all
}

func TestManifests(t *testing.T) {
	for name, dir := range map[string]string{"base": "../base", "production": "../production",
		"all components": withAll(t)} {
		t.Run(name, func(t *testing.T) {
			objects := render(t, dir)
			all := pods(t, objects)
			if len(all) != 5 {
				t.Errorf("%d kinds of pod, want the four roles and the migration", len(all))
			}
			for name, pod := range all {
				checkReferences(t, name, pod, of[*core.ConfigMap](t, objects))
			}
			for name, d := range of[*apps.Deployment](t, objects) {
				checkProcess(t, name, d)
			}
			checkSelectors(t, objects, all)
		})
	}
}

// checkReferences checks that the variables are options of the program, that secrets come from files, and that the
// files are mounted.
func checkReferences(t *testing.T, name string, pod core.PodTemplateSpec, configs map[string]*core.ConfigMap) {
	t.Helper()
	variables := map[string]string{}
	c := pod.Spec.Containers[0]
	for _, from := range c.EnvFrom {
		config := configs[from.ConfigMapRef.Name]
		if config == nil {
			t.Errorf("%s: there is no config map %s", name, from.ConfigMapRef.Name)
			continue
		}
		for key, value := range config.Data {
			variables[key] = value
		}
	}
	for _, v := range c.Env {
		variables[v.Name] = v.Value
	}
	options := documents(t)
	for variable, value := range variables {
		if strings.HasPrefix(variable, "SHOP_") && !bytes.Contains(options, []byte("`"+variable+"`")) {
			t.Errorf("%s: the program has no variable %s", name, variable)
		}
		if secret := regexp.MustCompile(`(DATABASE_URL|REDIS_URL|KEY|TOKEN|SECRET)$`); secret.MatchString(variable) {
			t.Errorf("%s: the secret %s is a variable, want %s_FILE", name, variable, variable)
		}
		if !strings.HasSuffix(variable, "_FILE") {
			continue
		}
		if !slices.ContainsFunc(c.VolumeMounts,
			func(m core.VolumeMount) bool { return m.MountPath == filepath.Dir(value) && m.ReadOnly }) {
			t.Errorf("%s: %s is not below a mount", name, value)
		}
	}
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Spec.Volumes,
			func(v core.Volume) bool { return v.Name == m.Name && v.Secret != nil }) {
			t.Errorf("%s: the mount %s has no volume with a secret", name, m.Name)
		}
	}
}

// documents returns the documents of all modules, which describe their options.
func documents(t *testing.T) (all []byte) {
	t.Helper()
	for _, file := range append(glob(t, "../../../docs/*.md"), glob(t, "../../../*/docs/*.md")...) {
		text, err := os.ReadFile(file)
		must(t, err)
		all = append(all, text...)
	}
	return all
}

// checkProcess checks that an update replaces no process before the next one is ready, and that no process is killed
// while it drains.
func checkProcess(t *testing.T, name string, d *apps.Deployment) {
	t.Helper()
	c := d.Spec.Template.Spec.Containers[0]
	if c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/healthz" ||
		c.StartupProbe == nil {
		t.Errorf("%s: the probes are %+v, %+v, %+v", name, c.ReadinessProbe, c.LivenessProbe, c.StartupProbe)
	}
	if d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
		t.Errorf("%s: an update makes processes unavailable: %+v", name, d.Spec.Strategy)
	}
	const drain, requests = 5, 10 // seconds: SHOP_DRAIN, and the time to finish requests
	if grace := *d.Spec.Template.Spec.TerminationGracePeriodSeconds; grace < drain+requests {
		t.Errorf("%s: a process is killed after %d s, want at least %d", name, grace, drain+requests)
	}
	if want := []string{"serve", "--roles=" + name}; !slices.Equal(c.Args, want) {
		t.Errorf("%s: the arguments are %q, want %q", name, c.Args, want)
	}
}

// checkSelectors checks that each selector matches pods, and that an operand of an autoscaler has no fixed number of
// pods.
func checkSelectors(t *testing.T, objects []runtime.Object, pods map[string]core.PodTemplateSpec) {
	t.Helper()
	matches := func(what string, wanted map[string]string) {
		t.Helper()
		for _, pod := range pods {
			if labels.SelectorFromSet(wanted).Matches(labels.Set(pod.Labels)) {
				return
			}
		}
		t.Errorf("the selector of %s matches no pod: %v", what, wanted)
	}
	for name, s := range of[*core.Service](t, objects) {
		if s.Spec.Selector != nil {
			matches("service "+name, s.Spec.Selector)
		}
	}
	for name, b := range of[*policy.PodDisruptionBudget](t, objects) {
		matches("budget "+name, b.Spec.Selector.MatchLabels)
	}
	for name, p := range of[*networking.NetworkPolicy](t, objects) {
		matches("network policy "+name, p.Spec.PodSelector.MatchLabels)
	}
	for name, m := range of[*monitoring.PodMonitor](t, objects) {
		matches("monitor "+name, m.Spec.Selector.MatchLabels)
	}
	deployments := of[*apps.Deployment](t, objects)
	for name, a := range of[*autoscaling.HorizontalPodAutoscaler](t, objects) {
		if d := deployments[a.Spec.ScaleTargetRef.Name]; d == nil || d.Spec.Replicas != nil {
			t.Errorf("the autoscaler %s scales %+v, want a deployment without a number of replicas", name, d)
		}
	}
}

// TestAlertRules checks that the rules for Prometheus's operator are those of Prometheus. The component monitoring has
// those of deploy/observability/alerts.yml. The component of a module NAME has those of alerts-NAME.yml in the module's
// deploy/observability. With -update it writes them.
func TestAlertRules(t *testing.T) {
	files := append(glob(t, "../../observability/alerts.yml"),
		glob(t, "../../../*/deploy/observability/alerts-*.yml")...)
	if len(files) == 0 {
		t.Fatal("found no alerts in the folders deploy/observability")
	}
	for _, file := range files {
		name, dir := "shop", "../monitoring"
		if part, found := strings.CutPrefix(filepath.Base(file), "alerts-"); found {
			name, dir = "shop-"+strings.TrimSuffix(part, ".yml"), filepath.Join(filepath.Dir(file), "../kubernetes")
		}
		text, err := os.ReadFile(file)
		must(t, err)
		var want monitoring.PrometheusRuleSpec
		if err := yaml.UnmarshalStrict(text, &want); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		path := filepath.Join(dir, "rules.yaml")
		if *update {
			writeRules(t, path, name, plain(t, want))
		}
		got := of[*monitoring.PrometheusRule](t, render(t, withAll(t)))[name]
		if got == nil || !reflect.DeepEqual(plain(t, got.Spec), plain(t, want)) {
			t.Errorf("%s differs from %s: run make kubernetes", path, file)
		}
	}
}

func writeRules(t *testing.T, path, name string, spec any) {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": map[string]any{"name": name}, "spec": spec,
	})
	must(t, err)
	const header = "# Alert rules of Prometheus, from deploy/observability. `make kubernetes` writes this file.\n"
	text = append([]byte(header), text...)
	must(t, os.WriteFile(path, text, 0o644))
}

// plain returns a value as JSON would have it.
func plain(t *testing.T, v any) (result any) {
	t.Helper()
	text, err := json.Marshal(v)
	must(t, err)
	must(t, json.Unmarshal(text, &result))
	return result
}
