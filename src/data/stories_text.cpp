// The stories' rules. stories_rules.h describes the format.
#include "data/stories_rules.h"

namespace ridge {

const std::string_view kStoryText = R"rules(
# Who. No word of a rule is the beginning of another one.
kid.girl (sex=girl, he=she, He=She, him=her, his=her, other=boy):
  Lily | Mia | Anna | Rose | Ella | Nora | Emma | Ruth | Ivy | Clara | Tess | June | Maya | Hazel | Greta | Iris | Zoe | Fern | Alma | Wren | Dora | Vera | Pia | Olga
  | Lucy | Edith | Nell | Ida | Selma | Tilda | Hanna | Kate | Bella | Grace | Wanda | Yara
kid.boy (sex=boy, he=he, He=He, him=him, his=his, other=girl):
  Tom | Ben | Max | Sam | Leo | Finn | Jack | Theo | Hugo | Otto | Paul | Emil | Noah | Oscar | Felix | Gus | Ned | Jonas | Ravi | Kit | Carl | Bruno | Walt | Simon
  | Adam | David | Erik | Frank | Henry | Igor | Karl | Luis | Omar | Peter | Roy | Toby
child: [kid.girl] | [kid.boy]
pet.boy (sex=boy, he=he, He=He, him=him, his=his):
  dog | fox | bear | frog | rabbit | hare | wolf | toad | goat | crow | pony | badger | robin | beaver | donkey | lion | hedgehog | pig | tiger | stork | weasel
pet.girl (sex=girl, he=she, He=She, him=her, his=her):
  cat | mouse | hen | duck | goose | squirrel | snail | turtle | sparrow | mole | swan | lamb | magpie | bee | heron | cow | moth | dove | lark
pet: [pet.boy] | [pet.girl]
nature:
  little | big | kind | clever | brave | shy | young | hungry | merry | wise | quiet | tiny | proud | sleepy | lonely | gentle | silly | busy | grumpy | bold | curious
  | polite | lazy | careful | patient | strong | friendly | hasty | modest | cunning | fearful | noble

# What. Each thing has something that is done with it.
colour: red | blue | green | white | yellow | black | brown | golden | silver | grey | purple | pink | copper | violet | striped | spotted
size: small | new | round | long | shiny | pretty | heavy | soft | strange | broken | dusty | lovely | wooden | magic | cheap | fine
thing.toy:
  ball (use=threw) | kite (use=flew) | drum (use=beat) | book (use=read) | bell (use=rang) | flute (use=played) | whistle (use=blew) | boat (use=sailed)
  | map (use=read) | marble (use=rolled) | sled (use=pulled) | doll (use=hugged) | hoop (use=rolled) | horn (use=blew) | mask (use=wore) | puppet (use=hugged)
  | violin (use=played) | trumpet (use=blew) | pencil (use=used) | picture (use=painted) | raft (use=sailed)
thing.house:
  hat (use=wore) | lamp (use=lit) | cup (use=filled) | key (use=hid) | basket (use=filled) | coat (use=wore) | letter (use=read) | candle (use=lit) | scarf (use=wore)
  | bucket (use=filled) | ring (use=hid) | mirror (use=cleaned) | spoon (use=licked) | blanket (use=folded) | kettle (use=filled) | lantern (use=lit) | broom (use=used)
  | ladder (use=climbed) | pillow (use=hugged) | clock (use=mended) | wheel (use=rolled) | hammer (use=used) | stove (use=lit) | shirt (use=wore)
thing.wild:
  stone (use=threw) | shell (use=cleaned) | feather (use=kept) | flower (use=smelled) | stick (use=threw) | leaf (use=kept) | pebble (use=rolled) | mushroom (use=smelled)
  | nest (use=watched) | nut (use=hid) | bone (use=hid) | rope (use=pulled) | root (use=pulled) | log (use=climbed) | web (use=watched) | tree (use=climbed) | cone (use=kept)
thing: [thing.toy] | [thing.house] | [thing.wild]
count:
  four (one=three, two=two) | five (one=four, two=three) | six (one=five, two=four) | seven (one=six, two=five) | three (one=two, two=one) | eight (one=seven, two=six)
  | nine (one=eight, two=seven) | ten (one=nine, two=eight)
taste: sweet | ripe | small | fresh | big | round | sour | warm | juicy | red | soft | green | fine | cold
food:
  apples | nuts | plums | pears | cakes | berries | carrots | buns | cherries | eggs | figs | cookies | peas | lemons | melons | rolls | dates | turnips | grapes | pies | beans
weather:
  sunny (sky=day) | warm (sky=day) | cold (sky=night) | bright (sky=day) | windy (sky=day) | dark (sky=night) | rainy (sky=day) | quiet (sky=night) | snowy (sky=day)
  | starry (sky=night) | foggy (sky=day) | clear (sky=night) | mild (sky=day) | stormy (sky=night) | grey (sky=day) | moonlit (sky=night) | fresh (sky=day) | frosty (sky=night)
time.day: day | morning | afternoon
time.night: night | evening | midnight

# Where, and what can be found there.
place:
  garden (kind=house) | forest (kind=wild) | lake (kind=wild) | market (kind=toy) | hill (kind=wild) | school (kind=toy) | river (kind=wild) | kitchen (kind=house)
  | beach (kind=wild) | barn (kind=house) | village (kind=toy) | meadow (kind=wild) | mill (kind=house) | bridge (kind=wild) | castle (kind=house) | fair (kind=toy)
  | tower (kind=house) | harbour (kind=toy) | cave (kind=wild) | bakery (kind=house) | park (kind=toy) | swamp (kind=wild) | cellar (kind=house) | pond (kind=wild)
  | shop (kind=toy) | stable (kind=house) | valley (kind=wild) | town (kind=toy)
spot:
  in the garden | in the forest | by the lake | at the market | on the hill | by the river | in the barn | on the beach | at the mill | in the meadow | by the sea
  | in the castle | on the bridge | at the fair | in the tower | in the cave | by the fire | in the park | on the stairs | at school | at home | on the road | by the gate
hide:
  under the bed | behind the door | on the roof | in a tree | under the stairs | in the oven | behind the clock | in a pot | under a bush | on a shelf | in a box | behind a rock
shelter: under a tree | in a barn | in a hut | under a cart | in a cave | behind a wall | under a bridge | in a tent | under a roof
went: went | ran | walked | rode | hurried | skipped | rushed | crept | drove | marched | hopped

# How it feels.
feel.good: happy | glad | proud | merry | calm | pleased | cheerful | thankful | lucky | rested | safe | content
feel.bad: sad | cross | tired | worried | gloomy | upset | lonely | scared | angry | bored | hurt | jealous
any: [feel.good] | [feel.bad]
was: was | felt | looked | seemed

story:
  [child] [got] a [colour] [thing].$                                                                    @0-0
  | [hero=child] [deed]$                                                                                @1-1
  | The [pet=pet] had [n=count] [food]. {pet.He} [ate] [eaten].$                                        @1-1
  | "I am [so] [any]," [said] the [nature] [pet].$                                                      @1-1
  | [hero=child] [errand@hero.sex]$                                                                     @2-2
  | One [w=weather] [time@w.sky] [hero=child] [walk@hero.sex]$                                          @2-2
  | The [nature] [pet=pet] had [n=count] [taste] [f=food]. {pet.He} gave [gift]$                         @2-2
  | "Where is my [size] [c=colour] [t=thing]?" [asked] [hero=child]. [seek@hero.sex]$                   @2-2
  | One [w=weather] [time@w.sky] [hero=child] [went] to the [p=place]. [plot@hero.sex][after]           @3
  | There was a [nature] [named] who [owned] a [c=colour] [t=thing.toy]. [wish@hero.sex][after]           @3
  | Long ago a [a=nature] [pet=pet] lived [spot]. [fable@pet.sex]$                                      @3

# One or two sentences.
got: had (mood=good) | found (mood=good) | lost (mood=bad) | saw (mood=good) | made (mood=good) | broke (mood=bad) | won (mood=good) | sold (mood=bad)
gain: found | bought | got | took | made | chose
owned: had | found | bought | made | won | loved | got
ate: ate | sold | lost | hid
so: so | not | very | quite | never
said: said | cried | sang | sighed | laughed
asked: asked | cried | said | sobbed
deed:
  [v=got] a [colour] [thing]. {hero.He} [was] [feel@v.mood].
  | [went] to the [p=place]. {hero.He} [got] a [thing@p.kind].
  | gave the [pet=pet] [count] [food]. {pet.He} [was] [feel.good].
eaten: one and kept {n.one} | two and kept {n.two}

# Three sentences.
errand.girl/boy:
  lost <her/his> [c=colour] [t=thing]. "Have you seen it?" <she/he> asked the [pet=pet]. [seen]
  | made a [size] [c=colour] [t=thing.toy] for [k=kid@hero.other]. {k.He} {t.use} it [spot] and [was] [feel.good].
  | and [k=kid@hero.other] [went] to the [p=place]. They [gain] a [c=colour] [t=thing@p.kind]. Then {k} {t.use} it and [was] [any].
seen: "It is [spot]," said the {pet}. | "No," said the {pet}. {hero} [was] [feel.bad].
walk.girl/boy:
  [went] to the [p=place]. <She/He> [gain] a [c=colour] [t=thing@p.kind] and {t.use} it. <She/He> [was] [feel.good].
  | met a [nature] [pet=pet]. "Come to the [place]!" [said] the {pet}. <She/He> [follow].
follow: [went] with {pet.him} | was too [feel.bad]
gift: one to [k=child]. Now {pet.he} had {n.one} {f}. [thanks] | two to [k=child]. Now {pet.he} had {n.two} {f}. [thanks]
thanks: "Thank you," said {k}. | They were [feel.good].
seek.girl/boy:
  "Here it is," [said] the [pet]. <She/He> {t.use} it and [was] [feel.good].
  | <She/He> [went] to the [place], but it was [hide].

# Longer ones. What becomes of the thing is remembered for the days after: does the hero still have it?
yes: Yes (has=no)
no: No (has=yes)
found: found it (has=yes)
gone: gone (has=no)
one: one (has=yes)
two: two (has=yes)
friends: friends (has=no)
named: girl named [hero=kid.girl] | boy named [hero=kid.boy]
plot.girl/boy:
  <She/He> [fate@hero.sex]
  | A [nature] [pet=pet] was [feel.bad]. {hero} had [n=count] [taste] [f=food] in a [c=colour] [t=vessel] and gave {pet.him} [share]
  | It began to [rain], so <she/he> hid [shelter] with a [nature] [pet=pet]. The {pet} had a [c=colour] [t=thing.house], and they {t.use} it. When the [light@w.sky] came out they were [g=friends].
fate.girl/boy:
  [gain] a [c=colour] [t=thing@p.kind] and {t.use} it. "Is it yours?" <she/he> asked a [nature] [pet=pet]. [yours]
  | lost <her/his> [c=colour] [t=thing.toy]. "Do not be [feel.bad]," [said] a [nature] [pet=pet]. "I saw it [spot]." They [search]
vessel: basket (use=filled) | bag (use=carried) | box (use=opened) | bowl (use=filled) | pot (use=cleaned) | jar (use=opened) | chest (use=opened) | sack (use=carried)
yours:
  "[g=yes]," [said] the {pet}, and {hero} gave {pet.him} the {t}. {pet.He} [was] [feel.good].
  | "[g=no]," [said] the {pet}, "it is [whose]." {hero} took the {c} {t} home and was [feel.good].
whose: yours now | not mine | for you | all yours
search: [went] there [result]
result: and [g=found]. {hero} [was] [feel.good]. | but it was [g=gone]. {hero} [was] [feel.bad].
share: [g=one]. Now {hero.he} had {n.one} {f}. [kind] | [g=two]. Now {hero.he} had {n.two} {f}. [kind]
kind: "You are [nature]," [said] the {pet}. | They sat [spot] and were [feel.good].
rain: rain | snow | storm | hail | thunder
light.day: sun | rainbow | birds
light.night: moon | stars | owls
wish.girl/boy:
  Every [time.day] <she/he> {t.use} it [spot]. One day [k=kid@hero.other] asked, "May I have it?" [may]
  | <She/He> {t.use} it [spot], but lost it. "Do not be [feel.bad]," [said] a [nature] [pet=pet]. "It is [hide]!" They [search]
may:
  "[g=yes]," [said] {hero}. {k} gave {hero.him} [count] [food] and [was] [feel.good].
  | "[g=no]," [said] {hero}, "it is mine." {k} [was] [feel.bad] and [went] home.
fable.girl/boy:
  <She/He> had a [c=colour] [t=thing] but no friends. One [w=weather] [time@w.sky] a [nature] [q=pet] asked for it. [stranger]
  | <She/He> wanted to be [nature], not {a}. "You are {a}, and that is good," [said] the [nature] [pet]. Then the {pet} [was] [feel.good].
stranger:
  The {pet} gave {q.him} the {t}. Now the {a} {pet} had a [nature] friend.
  | "No," [said] the {pet}. The {q} [went] away, and the {a} {pet} [was] [feel.bad].

# The days after.
after: _The next [time.day] {hero} [second@g.has][week] @4 | $
second.yes:
  took the {c} {t} to the [p=place]. [k=child] saw it and asked, "May I try it?" [try]
  | [gain] a [size] [x=thing] and met [k=kid@hero.other] [spot]. "I have [n=count] [taste] [f=food]," said {k}, and gave {hero.him} [part]. {hero.He} [was] [feel.good].
second.no:
  missed the {c} {t}. {hero.He} [went] to [k=child] and asked for help. [help]
  | wanted a new {t}. "I have a [size] one," [said] [k=child], "but not a {c} one." {hero} {t.use} it [spot] and [was] [any].
try:
  "Yes," [said] {hero}, and {k} {t.use} it until [time.night]. Both were [feel.good].
  | "Not now," [said] {hero}. {k} [was] [feel.bad] and [went] to the {p} alone.
part: one, so {k} had {n.one} | two, so {k} had {n.two}
help:
  "You can have my [size] [x=thing]," [said] {k}. So {hero} {x.use} it and [was] [feel.good].
  | "Let us look [spot]," [said] {k}. They [went] there, but saw only a [d=colour] [x=thing].
week: _A week later a [nature] [q=pet] came with [n=count] [taste] [f=food] and asked {hero} for the {c} {t}. [deal@g.has][night] @5 | $
deal.yes:
  "Take it," [said] {hero}, and {hero.he} got the {n} {f}. {hero.He} ate [eaten] for {k}. The {q} [was] [feel.good].
  | "It is mine," [said] {hero}. The {q} [was] [feel.bad], ate [eaten], and [went] back to the [place].
deal.no:
  "I do not have it," [said] {hero}. "I am [feel.bad]," [said] the {q}, gave {hero.him} [eaten], and [went] back to the [place].
  | "It is gone," [said] {hero}, "but I have a [d=colour] [x=thing]." The {q} {x.use} it [spot] and [was] [feel.good].
manner: kind | good | nice | brave | sweet | rude | bold | clever
night:
  _At [time.night] {hero} and {k} sat [spot] and spoke of the {q} with the {n} {f}. "It was [manner] of {q.him} to come," [said] {k}. Then they saw a [pet] [hide] and were [any].$
  | $
)rules";

}  // namespace ridge
