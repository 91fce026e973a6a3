// What is said of each landscape, and which quantities are plotted beside it.

/** Columns of a lane's blocks: what is measured, and what the theory expects of it. */
export const PLOTS = [
  ["watch", "expectedWatch"], ["trace", "expectedTrace"], ["loss", "expectedLoss"],
];

const THICK = "Thick: means over blocks; thin: the last 120 steps. Click to start elsewhere.";
const SAME = "antipgd.torch.perturb draws the same for a parameter of this name";

export const WORDS = {
  valley: {
    names: { a: "‖u‖", b: "v" },
    start: ["start ‖u‖", "start v"],
    watch: "‖u‖²",
    caption: "L(u, v) = ½v²‖u‖². Every point with v = 0 is a minimum, the flatter the further " +
      `left. ${THICK}`,
    theory: "expected: the valley’s drift of ‖u‖², v in equilibrium",
    same: `${SAME}; named w, the walk is that of antipgd sweep widening_valley with this seed.`,
  },
  regression: {
    names: { a: "from GD’s minimum to the sparse target", b: "towards w₀" },
    start: ["start, across", "start, up"],
    watch: "Test loss",
    caption: "L(w) = ‖X(w⊙w) − y‖²/4n in the plane of GD’s minimum, sparse target and w₀ = 1, " +
      `with walks projected on it. ${THICK}`,
    theory: "expected: the law at this η, where taps sum to 0 (hold: T = 2)",
    same: `${SAME}. The inputs X are draws, too: row i is draw i of the name X, purpose data.`,
  },
};
